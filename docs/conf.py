"""Settings of Sphinx. `make docs` builds the pages."""

project = "attention-conformance"
extensions = ["myst_parser", "docs.mathml"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["examples"]

nitpicky = True
myst_enable_extensions = ["attrs_block", "dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page of defects has chapters without text of their own

html_theme = "furo"
html_title = project
html_static_path = ["assets"]
html_favicon = "assets/icon.svg"
html_css_files = ["docs.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # it is fetched, which a page opened from a disk may not do
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors = False  # pages of others build theirs by scripts
