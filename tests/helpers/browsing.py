"""Pages in a browser: what is wrong with them. The fixture `browser` opens it."""

import shutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""The system's, as none is downloaded."""

LOOK = """() => ({
    links: [...document.querySelectorAll("a[href]")].map(link => link.href),
    ids: [...document.querySelectorAll("[id]")].map(element => element.id),
    broken: [...document.images].filter(image => !image.complete || !image.naturalWidth).map(image => image.src),
    undescribed: [...document.images].filter(image => !image.alt).map(image => image.src),
    excess: document.scrollingElement.scrollWidth - window.innerWidth,
})"""


def look_at(browser, address: str, pages: list[str], width: int) -> tuple[list[str], dict[str, dict]]:
    """Open pages: what is wrong with them, and what each has.

    `address` is where all pages and all that they load are, such as "http://127.0.0.1:8000/" or "file:///folder/".
    """
    problems, found = [], {}
    context = browser.new_context(viewport={"width": width, "height": 900})
    tab = context.new_page()
    tab.on("console", lambda message: problems.append(f"{tab.url}: console: {message.text}"))
    tab.on("pageerror", lambda error: problems.append(f"{tab.url}: error: {error}"))
    tab.on("requestfailed", lambda request: problems.append(f"{tab.url}: failed: {request.url}"))
    tab.on(
        "request",
        lambda request: (
            request.url.startswith((address, "data:")) or problems.append(f"{tab.url}: elsewhere: {request.url}")
        ),
    )
    tab.on(
        "response",
        lambda response: response.status < 400 or problems.append(f"{tab.url}: {response.status}: {response.url}"),
    )
    for page in pages:
        tab.goto(address + page)
        tab.evaluate("for (const image of document.images) image.loading = 'eager'")
        tab.wait_for_load_state("networkidle")
        seen = found[page] = tab.evaluate(LOOK)
        problems += [f"{page}: missing picture {src}" for src in seen["broken"]]
        problems += [f"{page}: picture without a description {src}" for src in seen["undescribed"]]
        if seen["excess"] > 0:
            problems.append(f"{page}: {seen['excess']} pixels wider than a window of {width}")
    context.close()
    return problems, found
