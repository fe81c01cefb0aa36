"""A page in the browser in which scores are dragged and the library answers: `structmax explore`.

`kinds` lists the structures and how their parts are laid out on the page; `request` checks what was sent; `answers`,
`sweep` and `gradients` ask the library; `server` speaks HTTP. The page itself is page.html, page.css and *.js.
"""
