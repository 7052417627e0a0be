"""A docstring begins with a noun or a verb that names the thing: "Options of a fit", "Return whether it is over".

What a dataclass prints as is documentation too: the fields that are its own do not stand there.
"""

import ast
import re
from pathlib import Path

import pytest
from house import House

import paceline

PACKAGE = Path(paceline.__file__).parent
QUESTION = re.compile(r"(What|Which|How|Whether|Where|Who|Whom|Whose|When|Why)\b")


def docstrings(tree):
    """Lines and texts of all strings that stand alone: of modules, classes, functions, and below constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def questions(tree):
    """Docstrings that open like a question: they say little without the name that they belong to."""
    return [(line, text.splitlines()[0]) for line, text in docstrings(tree) if QUESTION.match(text)]


@pytest.mark.slow
def test_no_docstring_opens_like_a_question():
    modules = House(PACKAGE).modules.values()
    assert len({module.room for module in modules}) > 10
    texts = [(module.path, line, text) for module in modules for line, text in docstrings(module.tree)]
    assert len(texts) > 3000
    found = [f"{path}:{line}: {text}" for path, line, text in texts if QUESTION.match(text)]
    assert not found, "\n".join(found)


PLANTED = {
    "a module": '"""What a module holds."""',
    "a class": 'class Thing:\n    """How a thing is made."""',
    "a method": 'class Thing:\n    def works(self):\n        """Whether it works."""',
    "a coroutine": 'async def wait():\n    """When it ends."""',
    "a constant": 'MOST = 3\n"""Which of them is the most."""',
    "an indented text": 'def cut():\n    """\n    Where to cut.\n    """',
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_question_is_noticed(planted):
    assert questions(ast.parse(PLANTED[planted]))


def test_a_noun_and_a_verb_are_no_questions():
    tree = ast.parse('"""Whatever comes."""\n\ndef works():\n    """Return whether it works: what, and how."""\n')
    assert len(list(docstrings(tree))) == 2
    assert not questions(tree)


def shows_private_fields(tree):
    """Lines of the fields with a leading underscore that stand in what the class prints as."""
    for node in ast.walk(tree):
        private = isinstance(node, ast.AnnAssign) and ast.unparse(node.target).startswith("_")
        if private and (node.value is None or "repr=False" not in ast.unparse(node.value)):
            yield node.lineno


def is_dataclass(node):
    return isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list)


@pytest.mark.slow
def test_a_dataclass_prints_no_field_that_is_its_own():
    modules = House(PACKAGE).modules.values()
    classes = [(m, node) for m in modules for node in ast.walk(m.tree) if is_dataclass(node)]
    assert len(classes) > 100
    found = [f"{m.path}:{line}" for m, node in classes for line in shows_private_fields(node)]
    assert not found, "\n".join(found)
