"""Parses the command line of a Python program. The errors have the same words as those of the C++ programs
(common/base/command_line.h, common/base/number.h)."""

import argparse
import collections
import pathlib
import re
import sys


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with exit status 2. An option with a value may be given once, unless its values
    make a list."""

    def __init__(self, **words):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **words)

    def parse_known_args(self, args=None, namespace=None):
        words = list(sys.argv[1:] if args is None else args)
        words = words[:words.index("--")] if "--" in words else words
        times = collections.Counter()
        for word, following in zip(words, [*words[1:], None]):
            name, equals, value = word.partition("=")
            action = self._option_string_actions.get(name)
            if not action or action.nargs == 0:
                if action and equals:
                    self.error(f"{name}: takes no value")
                continue
            if (value if equals else following) == "":
                self.error(f"{name} is empty")
            times[name] += not isinstance(action, argparse._AppendAction)
        for name, count in times.items():
            if count > 1:
                self.error(f"{name}: given {'twice' if count == 2 else f'{count} times'}; once is allowed")
        return super().parse_known_args(args, namespace)

    def error(self, message):
        message = " ".join(message.split("\n"))
        if found := re.fullmatch(r"argument (\S+): expected one argument", message):
            name = found[1].split("/")[-1]  # argparse writes -o/--out
            action = self._option_string_actions[name]
            message = f"{name}: its value, {action.metavar or action.dest.upper()}, is missing"
        if found := re.fullmatch(r"argument (\S+): (.*: not allowed; an? .*)", message):  # the words of number()
            message = f"{found[1]} {found[2]}"
        else:
            message = message.removeprefix("argument ") + "; --help shows what is allowed"
        self.exit(2, f"{pathlib.Path(self.prog.split()[0]).stem}: {message}\n")


def number(kind, least, most):
    """Returns a function that turns the text of an option into a number. The function allows the same texts as
    parse_number() of common/base/number.h, and its errors have the same words."""
    def parse(text):
        whole = r"-?\d+" if kind is int else r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
        if re.fullmatch(whole, text, re.ASCII) and least <= kind(text) <= most:
            return kind(text)
        what = "an integer" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"{text}: not allowed; {what} from {least} to {most}")
    return parse
