"""Plots of a run as Vega-Lite specifications; the page adds colours, and selects the data that is shown."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any, TypeAlias

from attention_conformance.tests.benchmarks import formatting
from attention_conformance.tests.benchmarks.benchmark_run import Growth, Measurement, Run, Speed

Value: TypeAlias = dict[str, Any]
CHOICES = ("workload", "level", "passes", "dtype", "device")
"""The filters of the page: parameters of every plot, where "" selects all."""
SHAPES = (
    "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
    "M-.9,-.9H.9V.9H-.9Z",
    "M0,-1.1L1.05,.8H-1.05Z",
    "M0,-1.25L1.25,0L0,1.25L-1.25,0Z",
    "M-1.1,-.4H-.4V-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1Z",
    "M0,1.1L1.05,-.8H-1.05Z",
    "M-1.2,-.5H1.2V.5H-1.2Z",
)
"""SVG paths."""
COLOURS = 8
"""Number of colours of the page; pairs of shape and colour repeat only after 56 implementations."""
ROW, LINE, LETTERS = 24, 14, 44
"""Of the forest plot: pixels of an interval, pixels of a line of the label above it, and letters of that line."""
HEIGHT = 300
DOT = {"filled": True, "size": 60, "opacity": 1}
ALWAYS_VISIBLE = {"x": {"datum": 0.8, "type": "quantitative"}, "x2": {"datum": 1.25}, "y": {"value": 0}}
"""Ratios that the forest plot contains whatever was measured."""
TENS = {
    "values": [10.0**power for power in range(-6, 9)],
    "labelExpr": "format(datum.value, datum.value < 1 ? '~g' : '~s')",
    "labelOverlap": True,
}
VALID = {"filter": "isValid(datum.value)"}
WIDE = 1e3
"""A ratio of largest and smallest value above which ticks are at powers of ten only."""


def plots(run: Run) -> dict[str, Value]:
    """The specifications by the ids of their figures; a plot that would have no data is left out."""
    names = named(run)
    lines = max([len(_broken(name)) for name in names], default=1)
    rows = {
        "ratios": list(_ratios(run.measurements, lines)),
        "roofline": list(_achievements(run.measurements)),
        "time": list(_grown(run.growths, "time")),
        "memory": list(_grown(run.growths, "memory")),
    }
    specifications = {
        "ratios": _forest(names, _ticks(rows["ratios"], "value"), lines),
        "roofline": _roofline(run, names, rows["roofline"]),
        "time": _growth(names, _units("s", "seconds a call", _ticks(rows["time"], "value"))),
        "memory": _growth(names, _units("B", "bytes at the peak of a call", _ticks(rows["memory"], "value"))),
    }
    drawn = {name for name in specifications if any("value" in row or "achieved" in row for row in rows[name])}
    return {name: _finished(spec, rows[name]) for name, spec in specifications.items() if name in drawn}


def named(run: Run) -> list[str]:
    """The implementations in the order of their first appearance, which gives them colour and shape."""
    names = [*(each.implementation for each in run.measurements), *(each.implementation for each in run.growths)]
    return list(dict.fromkeys(names))


def _finished(spec: Value, rows: Sequence[Value]) -> Value:
    tests = [f"({name} == '' || !isDefined(datum.{name}) || datum.{name} == {name})" for name in CHOICES]
    tests.append("(!isDefined(datum.implementation) || indexof(shown, datum.implementation) >= 0)")
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "params": [*({"name": name, "value": ""} for name in CHOICES), {"name": "shown", "value": []}],
        "data": {"values": list(map(_rounded, rows))},
        "transform": [{"filter": " && ".join(tests)}],
        "width": "container",
        **spec,
    }


def _identity(names: Sequence[str]) -> Value:
    """Colour and shape of each implementation: the same in every plot, and in the legend of the page."""
    shapes = [SHAPES[number % len(SHAPES)] for number in range(len(names))]
    field = {"field": "implementation", "legend": None}
    return {
        "color": {**field, "scale": {"domain": names, "range": "category"}},
        "shape": {**field, "scale": {"domain": names, "range": shapes}},
    }


def _layer(mark: str, encoding: Value, *transform: Value, **properties: Any) -> Value:
    return {"mark": {"type": mark, **properties}, "encoding": encoding, "transform": list(transform)}


def _logarithmic(field: str, axis: Value | None, **scale: Any) -> Value:
    return {"field": field, "type": "quantitative", "scale": {"type": "log", **scale}, "axis": axis}


def _ticks(rows: Sequence[Value], field: str) -> list[float]:
    """For a logarithmic axis: 1, 2, 5, 10, ... or, over a wide range, powers of ten alone."""
    values = [row[field] for row in rows if field in row]
    wide = bool(values) and max(values) > WIDE * min(values)
    every = (float(f"{digit}e{power}") for power in range(-12, 21) for digit in ((1,) if wide else (1, 2, 5)))
    low, high = min(values, default=1.0), max(values, default=1.0)
    return [tick for tick in every if low / 10.0 <= tick <= high * 10.0]


def _rounded(row: Value) -> Value:
    """Four digits are more than a plot can show, and a third of the page's data."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in row.items()}


def _described(*fields: str) -> Value:
    """These fields as a tooltip, and for screen readers."""
    description = " + ', ' + ".join(f"datum.{field}" for field in fields)
    titles = {"text": "value", "time": "median", "floor": "of the machine's floor"}
    tooltip = [{"field": field, "title": titles.get(field, field)} for field in fields]
    return {"tooltip": tooltip, "description": {"value": {"expr": description}}}


def _coordinates(each: Measurement | Growth) -> Value:
    return {name: getattr(each, name) for name in CHOICES if hasattr(each, name)}


def _identified(each: Measurement | Growth) -> Value:
    return {**_coordinates(each), "implementation": each.implementation}


def _ratios(measurements: Sequence[Measurement], lines: int) -> Iterator[Value]:
    """Rows of the forest plot: a heading for each block of comparable calls, then its implementations."""
    numbered = groupby(enumerate(measurements), key=lambda each: _coordinates(each[1]))
    for block, rows in numbered:
        for position, (number, each) in enumerate(rows):
            if not position:
                heading = ", ".join(block.values()), f"baseline {each.baseline}"
                yield {**block, "row": number - 0.5, "heading": list(map(formatting.visible, heading))}
            if each.verdict is not Speed.BASELINE:
                yield {**_identified(each), "row": number, **_ratio(each, lines)}


def _ratio(measurement: Measurement, lines: int) -> Value:
    """Numbers only where the time counts; a ratio of 0 has no place on a logarithmic axis."""
    name = _broken(measurement.implementation)
    always = {"verdict": str(measurement.verdict), "lines": [""] * (lines - len(name)) + name}
    if not formatting.counts(measurement) or measurement.speed is None or measurement.speed.low <= 0:
        reason = formatting.visible(measurement.reason)
        return {**always, "text": reason, "label": f"{measurement.verdict}: {reason}"}
    return {
        **always,
        "text": formatting.as_ratio(measurement.speed),
        "label": f"{formatting.as_ratio(measurement.speed).partition(' ')[0]} {measurement.verdict}",
        "value": measurement.speed.value,
        "low": measurement.speed.low,
        "high": measurement.speed.high,
        "quiet": 1.0 / (1.0 + (measurement.noise or 0.0)),
        "loud": 1.0 + (measurement.noise or 0.0),
    }


def _forest(names: Sequence[str], ticks: Sequence[float], lines: int) -> Value:
    """Names are above intervals, so that both have the whole width of a narrow page."""
    axis = {"orient": "top", "values": ticks, "format": "~g", "title": "times as fast as the baseline"}
    x = _logarithmic("value", {**axis, "labelOverlap": True}, nice=False, padding=14)
    band = {"field": "row", "type": "ordinal", "axis": None, "scale": {"padding": 0}}
    y, top, start = {**band, "bandPosition": 1}, {**band, "bandPosition": 0}, {"value": 0}
    described = _described("implementation", "workload", "passes", "dtype", "text", "verdict")
    interval = {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}, **described}
    noise = {"y": y, "x": {**x, "field": "quiet"}, "x2": {"field": "loud"}}
    name = {"y": top, "x": start, "text": {"field": "lines"}, **described}
    line, left = {"y": y, "x": start, **described}, {"align": "left", "baseline": "middle", "aria": False}
    above, both = {"yOffset": -ROW / 2}, {"yOffset": -ROW / 2, "y2Offset": -ROW / 2}
    title = {"dy": -LINE / 2, "lineHeight": LINE, "fontWeight": "bold"}
    context = {**left, **above, "align": _by_side("'left'", "'right'"), "limit": {"expr": "width"}}
    label = {**line, "x": {"value": _by_side("0", "width")}, "text": {"field": "label"}}
    return {
        "height": {"step": ROW + LINE * lines},
        "layer": [
            _layer("rule", ALWAYS_VISIBLE, opacity=0, aria=False),
            _layer("rule", noise, VALID, **both, strokeWidth=12, style="noise", aria=False),
            _layer("rule", {"x": {"datum": 1, "type": "quantitative"}}, strokeDash=[4, 3], aria=False),
            _layer("rule", {**interval, "color": _identity(names)["color"]}, VALID, **both, strokeWidth=3, aria=False),
            _layer("point", {"y": y, "x": x, **described, **_identity(names)}, VALID, **above, **DOT),
            _layer("text", name, _has("lines"), **left, dy=LINE, lineHeight=LINE),
            _layer("text", {**line, "text": {"field": "heading"}}, _has("heading"), **left, **above, **title),
            _layer("text", label, _has("label"), **context),
        ],
    }


def _has(field: str) -> Value:
    return {"filter": f"isDefined(datum.{field})"}


def _by_side(left: str, right: str) -> Value:
    """One of two expressions: the first where the text has to go to the left, because the mark is on the right."""
    return {"expr": f"!isValid(datum.value) || scale('x', datum.value) > width / 2 ? {left} : {right}"}


def _broken(name: str) -> list[str]:
    return wrap(formatting.visible(name), LETTERS) or [""]


def _achievements(measurements: Sequence[Measurement]) -> Iterator[Value]:
    """Points of the roofline plot: what counts, and what the machine cannot have done."""
    for each in measurements:
        if (formatting.counts(each) or each.verdict is Speed.IMPOSSIBLE) and formatting.intensity(each):
            yield {
                **_identified(each),
                "verdict": str(each.verdict),
                "intensity": formatting.intensity(each),
                "achieved": formatting.achieved(each),
                "floor": formatting.in_percent(formatting.share_of_floor(each)),
                "time": formatting.with_quartiles(each.seconds)[0],
            }


def _roofline(run: Run, names: Sequence[str], rows: Sequence[Value]) -> Value:
    x = _logarithmic("intensity", {**TENS, "title": "operations per byte"})
    y = _logarithmic("achieved", _units("FLOP/s", "operations per second", _ticks(rows, "achieved")))
    chosen = "(dtype == '' || datum.dtype == dtype)"
    described = _described("implementation", "workload", "passes", "dtype", "time", "floor", "verdict")
    hollow = {"condition": {"test": "datum.verdict == 'impossible'", "value": 0}, "value": 0.8}
    dash = {"field": "kind", "legend": None, "scale": {"domain": ["memory", "cache"], "range": [[1, 0], [4, 4]]}}
    roofs = {"data": {"values": list(_roofs(run))}}
    paths = {"x": x, "y": y, "detail": {"field": "dtype"}, "strokeDash": dash}
    line = _layer("line", paths, {"filter": chosen}, strokeWidth=2, aria=False)
    text = {"x": x, "y": y, "text": {"field": "roof"}}
    ends = {"filter": f"datum.roof && {chosen}"}
    identity = _identity(names)
    points = {"x": x, "y": y, "fillOpacity": hollow, "stroke": identity["color"], **described, **identity}
    return {
        "height": HEIGHT,
        "layer": [
            line | roofs,
            _layer("text", text, ends, align="right", dy=-9, aria=False) | roofs,
            _layer("point", points, **DOT),
        ],
    }


def _roofs(run: Run) -> Iterator[Value]:
    """The machine's roofs by dtype: bandwidth up to the ridge, then the rate of matrix products."""
    known = [value for each in run.measurements if (value := formatting.intensity(each))]
    bandwidths = {"memory": run.rates.bandwidth}
    if run.rates.by_set:
        bandwidths = {"cache": max(run.rates.by_set.values()), **bandwidths}
    for dtype, rate in run.rates.matmul.items():
        ridges = [rate / bandwidth for bandwidth in bandwidths.values()]
        low, high = min([*known, *ridges]) / 2.0, max([*known, *ridges]) * 2.0
        for (kind, bandwidth), ridge in zip(bandwidths.items(), ridges, strict=True):
            for at in (low, ridge, high):
                name = f"{dtype} {formatting.in_rate(rate, 'FLOP')}" if (kind, at) == ("memory", high) else ""
                reached = min(rate, bandwidth * at)
                yield {"dtype": dtype, "kind": kind, "intensity": at, "achieved": reached, "roof": name}


def _grown(growths: Sequence[Growth], quantity: str) -> Iterator[Value]:
    """A row for each length: the measured value, and that of the fitted line."""
    for each in growths:
        values = {n: v for n, v in zip(each.lengths, each.values, strict=True) if n > 0 and v > 0}
        if each.quantity == quantity and values:
            yield from _points(each, values)


def _points(growth: Growth, values: dict[int, float]) -> Iterator[Value]:
    exponent = growth.exponent.value
    factor = math.exp(sum(math.log(v) - exponent * math.log(n) for n, v in values.items()) / len(values))
    in_unit = formatting.in_seconds if growth.quantity == "time" else formatting.in_bytes
    for length, value in values.items():
        yield {
            **_identified(growth),
            "line": f"{growth.implementation} {growth.passes} {growth.dtype}",
            "length": length,
            "value": value,
            "fit": factor * length**exponent,
            "exponent": formatting.as_exponent(growth.exponent),
            "text": in_unit(value),
        }


def _growth(names: Sequence[str], axis: Value) -> Value:
    doubling = {"title": "length L", "values": [2**n for n in range(24)], "format": "d", "labelOverlap": True}
    x, y = _logarithmic("length", doubling, base=2, nice=False, padding=14), _logarithmic("value", axis)
    identity = _identity(names)
    dash = {"field": "dtype", "legend": None}
    line = {"x": x, "y": {**y, "field": "fit"}, "detail": {"field": "line"}, "strokeDash": dash}
    described = _described("implementation", "passes", "dtype", "length", "text", "exponent")
    return {
        "height": HEIGHT,
        "layer": [
            _layer("line", {**line, "color": identity["color"]}, strokeWidth=2, aria=False),
            _layer("point", {"x": x, "y": y, **described, **identity}, **DOT),
        ],
    }


def _units(unit: str, title: str, ticks: Sequence[float]) -> Value:
    """An axis in units; its title lies above it, to leave a narrow page its width."""
    label = f"replace(format(datum.value, '~s'), /([^0-9.]*)$/, ' $1') + '{unit}'"
    above = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -14}
    return {"title": title, "labelExpr": label, "values": ticks, "labelOverlap": True, **above}
