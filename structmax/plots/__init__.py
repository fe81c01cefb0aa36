"""Pictures. They are made of arrays and files, and touch no global state.

`simplex` and `curves` return matplotlib Figures, `structures` SVG, `report` a page, `tables` CSV and LaTeX. Their parts:
`files` reads a run's folder, and `series` finds the curves in its metrics; `trees`, `arcs`, `sequences`, `heat_map` and
`images` draw one kind of drawing each, with the shapes of `svg`; `run_page` and `comparison_page` are the two kinds of
reports, made of the curves and bars of `charts` and the tables, legends and style of `page`.
"""
