"""The chat of the page, as a person has it: what is written, what is seen."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Page, expect

__all__ = ["LONGER", "ChatPage", "plain"]

LONGER = {"ignore_eos": True, "max_tokens": 1800}
"""Fields of a chat that takes the shipped model more than a second, so that it can be disturbed."""


def plain(text: str) -> str:
    """Return the words of a text with one space between them.

    What is shown of an answer has other line breaks than its source.
    """
    return " ".join(text.split())


class ChatPage:
    """One page with the chat in view."""

    def __init__(self, page: Page) -> None:
        self.page = page
        expect(page.locator("#model option")).not_to_have_count(0)

    @property
    def message(self) -> Any:
        return self.page.get_by_label("Message", exact=True)

    def send(self, text: str) -> None:
        self.message.fill(text)
        self.message.press("Enter")

    def ask(self, text: str) -> str:
        """Send a message and return the whole answer."""
        self.send(text)
        return self.ended()

    def ended(self, state: str = "done") -> str:
        """Wait for the end of the last answer and return its text."""
        expect(self.answer).to_have_attribute("data-state", state)
        return self.text

    def has_begun(self, least: int = 40) -> str:
        """Wait until so many characters of the last answer are there."""
        expect(self.said).to_have_text(re.compile(f".{{{least},}}", re.DOTALL))
        return self.text

    @property
    def answer(self) -> Any:
        return self.page.locator(".answer").last

    @property
    def said(self) -> Any:
        return self.answer.locator(".choice > :is(div, .raw) :is(.said, .markdown)").first

    @property
    def text(self) -> str:
        return plain(self.said.evaluate("(said) => said.innerText || said.textContent"))

    @property
    def note(self) -> Any:
        """What is said about how the last answer has ended."""
        return self.answer.locator(".note")

    @property
    def questions(self) -> list[str]:
        return self.page.locator(".question .said").all_text_contents()

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def option(self, label: str, value: str) -> None:
        """Set an option, in whichever part of the options it is."""
        self.page.evaluate(
            "for (const one of document.querySelectorAll('details')) one.open = true"
        )
        self.page.get_by_label(label, exact=True).fill(value)
