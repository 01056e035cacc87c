"""Answers as Markdown: elements for it, none for anything else, drawn while they arrive."""

from __future__ import annotations

from typing import Any

import pytest
from chat_page import ChatPage
from chromium import Watched
from page_server import Script, ServePage, chunk
from playwright.sync_api import expect

TEXT = """# Title

Some *slanted* and **bold** text, `code`, ~~gone~~ and [a link](https://page.example/x "t").
A second line.

1. one
2. two
   - inner

> quoted

| left | right |
|:-----|------:|
| a    |     1 |

```python
def f():
    return "<b>"
```

---

See [the end][end].

[end]: https://page.example/end
"""
HTML = """<h3>Title</h3><p>Some <em>slanted</em> and <strong>bold</strong> text, <code>code</code>\
, <s>gone</s> and <a href="https://page.example/x" title="https://page.example/x" target="_blank" \
rel="noopener noreferrer nofollow">a link</a>.<br>A second line.</p><ol><li>one</li><li>two<ul>\
<li>inner</li></ul></li></ol><blockquote><p>quoted</p></blockquote><table><thead><tr>\
<th class="at-left">left</th><th class="at-right">right</th></tr></thead><tbody><tr>\
<td class="at-left">a</td><td class="at-right">1</td></tr></tbody></table><div class="code">\
<div class="row spread"><span class="language">python</span>\
<button type="button" class="action">Copy code</button></div><pre tabindex="0"><code>def f():
    return "&lt;b&gt;"
</code></pre></div><hr><p>See <a href="https://page.example/end" \
title="https://page.example/end" target="_blank" rel="noopener noreferrer nofollow">the end</a>\
.</p>"""

HOSTILE = """<script>window.taken = 1</script>
<img src=x onerror="window.taken = 1"> <svg onload="window.taken = 1"> <b>b</b>
<style>body { display: none }</style><iframe src="https://evil.example/"></iframe>

![pixel](https://evil.example/pixel.png) ![own](v1/models) ![data](data:image/png;base64,AAAA)
[one](javascript:window.taken=1) [two](JAVASCRIPT&colon;window.taken=1) [three](java\tscript:taken)
[four](data:text/html,<script>window.taken=1</script>) [five](vbscript:x) [six](file:///etc/passwd)
[seven](//evil.example/x) [eight](/v1/models) [nine](#live) <javascript:window.taken=1>
[ten](https://page.example/"onclick="window.taken=1) [eleven](blob:https://page.example/x)

[ref]: javascript:window.taken=1
[ref] <https://page.example/auto>

```"><script>window.taken=1</script>
</code></pre><script>window.taken = 1</script>
```
"""


def served_answer(watched: Watched, serve_page: ServePage, *chunks: Any) -> ChatPage:
    return ChatPage(watched.open(serve_page(Script([*chunks]))))


def test_an_answer_is_elements(watched: Watched, serve_page: ServePage) -> None:
    chat = served_answer(watched, serve_page, chunk(TEXT), chunk(reason="stop"))
    chat.ask("Go on")
    assert chat.answer.locator(".markdown").inner_html() == HTML
    chat.page.reload()
    expect(chat.answer.locator(".markdown h3")).to_have_text("Title")
    assert chat.answer.locator(".markdown").inner_html() == HTML


PIECES = """1. one

2. two

   more of two

       code of two

10. ten

- a

- b
  - c

    d

Heading
=======
text
---

    code

    more code

a | b
--|--
1 | 2

> q

> r
"""


@pytest.mark.parametrize("text", [TEXT, PIECES, TEXT.replace("\n", "\r\n")], ids=range(3))
def test_an_answer_has_the_same_elements_however_it_came(
    watched: Watched, serve_page: ServePage, text: str
) -> None:
    """It is drawn after each character, and with all characters at once."""
    page = watched.open(serve_page())
    pieces, whole, n_settled = page.evaluate(
        """async (text) => {
            const { MarkdownView } = await import("./page/markdown.js");
            performance.now = () => 0; // no drawing is left out because of its time
            const drawn = (steps) => {
                const view = new MarkdownView();
                const choice = { text: "" };
                let nSettled = 0;
                for (const step of steps) {
                    choice.text += step;
                    const before = view.element.firstChild;
                    view.show(choice, false);
                    nSettled += before !== null && before === view.element.firstChild;
                }
                view.show(choice, true);
                return [view.element.innerHTML, nSettled];
            };
            const [pieces, nSettled] = drawn([...text]);
            return [pieces, drawn([text])[0], nSettled];
        }""",
        text,
    )
    assert pieces == whole
    assert n_settled > len(text) / 3, "the first block is not drawn again"


def test_hostile_markdown_is_text(watched: Watched, serve_page: ServePage) -> None:
    chat = served_answer(watched, serve_page, chunk(HOSTILE), chunk(reason="stop"))
    text = chat.ask("Go on")
    page = chat.page
    for part in ("<script>window.taken = 1</script>", "onerror=", "<iframe", "</code></pre>"):
        assert part in text
    inside = page.locator(".markdown")
    assert inside.locator("img, svg, script, style, iframe, b, object, video").count() == 0
    hrefs = inside.locator("a").evaluate_all("(all) => all.map((one) => one.href)")
    assert hrefs
    assert all(href.startswith("https://") for href in hrefs), hrefs
    assert {"https://evil.example/pixel.png", "https://page.example/auto"} <= set(hrefs)
    attributes = inside.evaluate(
        "(all) => [...all.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    )
    assert set(attributes) <= {"href", "title", "target", "rel", "class", "type", "tabindex"}
    for link in inside.locator("a").all():
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    page.wait_for_timeout(200)
    assert page.evaluate("window.taken") is None


@pytest.mark.parametrize(
    "text",
    [
        *(">" * 30_000, "- " * 20_000 + "a", "[" * 40_000, "![" * 20_000, "*a " * 20_000),
        *("*a* " * 40_000, "`" * 30_000 + "a", "|" * 40_000 + "\n" + "|-" * 20_000),
        *("\n".join(">" * i + " a" for i in range(300)), "# a\n" * 40_000, "a" * 300_000),
    ],
    ids=range(11),
)
def test_deep_and_long_markdown_holds_nobody_up(
    watched: Watched, serve_page: ServePage, text: str
) -> None:
    half = len(text) // 2
    chat = served_answer(
        watched, serve_page, chunk(text[:half]), chunk(text[half:]), chunk(reason="stop")
    )
    chat.ask("Go on")
    depth = """() => {
        let most = 0;
        for (const one of document.querySelectorAll(".markdown *")) {
            let depth = 0;
            for (let up = one; up !== null; up = up.parentElement) depth += 1;
            most = Math.max(most, depth);
            if (most > 200) break;
        }
        return most;
    }"""
    assert chat.page.evaluate(depth) <= 200
    chat.button("New chat").click()
    expect(chat.page.get_by_text("Ask the model something")).to_be_visible()


def test_a_long_answer_is_drawn_block_by_block(watched: Watched, serve_page: ServePage) -> None:
    """Elements of complete blocks stay the same; only the last block is drawn again."""
    blocks = [f"Paragraph {i} with *some* text.\n\n" for i in range(200)]
    chat = served_answer(watched, serve_page, *map(chunk, blocks), chunk(reason="stop"))
    chat.page.evaluate(
        """() => {
            window.removed = 0;
            new MutationObserver((changes) => {
                const own = changes.filter((one) => one.target.className === "markdown");
                for (const one of own) window.removed += one.removedNodes.length;
            }).observe(document.body, {subtree: true, childList: true});
        }"""
    )
    chat.ask("Go on")
    expect(chat.answer.locator(".markdown > p")).to_have_count(200)
    assert chat.page.evaluate("window.removed") <= 201  # the last block of each drawing


def test_code_can_be_copied(watched: Watched, serve_page: ServePage) -> None:
    url = serve_page(Script([chunk("```\na < b\n```\n"), chunk(reason="stop")]))
    page = watched.open(url, permissions=["clipboard-read", "clipboard-write"])
    chat = ChatPage(page)
    chat.ask("Go on")
    chat.button("Copy code").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "a < b\n"
