"""The equations in float64 NumPy: values, closed-form gradients, and how far rounding may carry an answer."""
