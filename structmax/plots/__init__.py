"""Pictures. They are made of arrays and files, and touch no global state.

`simplex` and `curves` return matplotlib Figures, `structures` SVG, `report` a page of both. Their parts:
`series` finds the curves in a run's metrics; `trees`, `arcs`, `sequences`, `heat_map` and `images` draw one kind of
drawing each, with the shapes of `svg`; `charts` and `page` are the report's curves, bars, tables and style.
"""
