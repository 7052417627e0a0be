"""What the house looks like: its modules, and what each imports, read from the source without running it."""

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOUNDATION = "foundation"
FACE = "face"

MAY_IMPORT = {
    FOUNDATION: set(),
    "datasets": {FOUNDATION},
    "predictors": {FOUNDATION},
    "solver": {FOUNDATION},
    "recording": {FOUNDATION, "datasets"},
    "training": {FOUNDATION, "datasets", "predictors"},
    "coordinator": {FOUNDATION, "predictors", "solver"},
    "eval": {FOUNDATION, "datasets", "predictors", "solver", "recording", "training", "coordinator"},
    "runs": {FOUNDATION, "datasets", "predictors", "coordinator"},
    "engines": {FOUNDATION, "datasets", "predictors", "solver", "recording", "coordinator", "runs"},
    "audit": {FOUNDATION, "predictors", "coordinator", "engines"},
    "report": {FOUNDATION, "datasets", "predictors", "training", "eval", "runs"},
    "lab": set(),  # filled below: all of them
}
"""The rooms, and what each may import: down this table, never up."""

MAY_IMPORT["lab"] = {FOUNDATION, *MAY_IMPORT} - {"lab", FACE}

EXCEPTIONS = {("paceline.predictors.checks", "datasets")}
"""The checks of the contract need a trace to fit to, made when a check runs."""

INHERITING = {"self", "cls", "served"}
"""Names of an object of the class that a file defines: ``served`` is a copy of itself that a predictor fits by."""

NAMED_TWICE = {
    "sitecustomize.py": "Python imports it by this name at its start, from a folder of its own",
    "BalancedLoader": "under Accelerate a script takes it from another room and changes no other line",
}
"""Files and classes whose name stands twice, each with its reason."""

LARGEST_SHARE, FEW_LINES = 0.2, 1000
"""Largest part of the library's lines in one room, since more is more than one room; of a library of more lines than
these."""

MOST_FILES = 16
"""Most modules in a folder: more are hard to survey."""

PICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
PICKLES_ITS_OWN = "paceline.predictors.checks"
"""The contract checks pickle a predictor and read it back."""

SAFE_WITH = {"np.load": "allow_pickle=False", "torch.load": "weights_only=True"}
OBJECTS_SENT = {"all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"}
OBJECTS_SENT |= {"send_object_list", "recv_object_list"}
"""Calls of torch.distributed that pickle what they send, and unpickle what comes."""


@dataclass(frozen=True)
class Module:
    """One source file, by its dotted name."""

    name: str
    path: Path

    @cached_property
    def tree(self):
        tree = ast.parse(self.path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = [ast.Pass()]  # imports for type annotations alone are none when it runs
        return tree

    @property
    def room(self):
        """The room that it belongs to; the foundation and the face are files of the package itself."""
        parts = self.name.split(".")
        if len(parts) > 1 and parts[1] in MAY_IMPORT:
            return parts[1]
        return FOUNDATION if len(parts) == 2 and parts[1].startswith("_") and parts[1] != "__main__" else FACE


class House:
    """All modules of a package folder."""

    def __init__(self, package):
        self.modules = {}
        for path in sorted(self._sources(package)):
            parts = path.relative_to(package.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = Module(name, path)

    def _sources(self, folder):
        for path in folder.iterdir():  # rglob does not follow the links to the rooms in every Python
            if path.is_dir() and path.name != "__pycache__":
                yield from self._sources(path)
            elif path.suffix == ".py":
                yield path

    def imports(self, module):
        """The modules of ours that a module imports, at its top or inside a function."""
        found = set()
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                # `from a.b import c` needs the module a.b.c if there is one, and a.b otherwise.
                found |= {
                    f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in self.modules else node.module
                    for alias in node.names
                }
        return {name for name in found if name in self.modules} - {module.name}

    def one_way(self):
        """Yield every import that does not run down the table."""
        for module in self.modules.values():
            if module.room == FACE:
                continue
            for name in self.imports(module):
                room = self.modules[name].room
                allowed = {module.room, *MAY_IMPORT[module.room]}
                if room not in allowed and (module.name, room) not in EXCEPTIONS:
                    yield f"{module.name} imports {name}, of the {room}"

    def cycles(self):
        """Yield groups of modules that import each other, lazily or not.

        A room's table of contents imports its files; files that import their own folder's table close a cycle too.
        """
        graph = {name: self.imports(module) for name, module in self.modules.items()}
        yield from (sorted(group) for group in strongly_connected(graph) if len(group) > 1)

    def private_attributes(self):
        """Yield every use of a private attribute that another file of ours defines.

        What a class inherits (``self``, and its own copies) is protected, and what other libraries call private is
        explained where it is used.
        """
        defined = {module.name: _defined(module.tree) for module in self.modules.values()}
        for module in self.modules.values():
            elsewhere = set().union(*(names for name, names in defined.items() if name != module.name))
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                    inherited = isinstance(node.value, ast.Name) and node.value.id in INHERITING
                    if node.attr in elsewhere - defined[module.name] and not inherited:
                        yield f"{module.name}:{node.lineno} uses {ast.unparse(node)}"

    def unpickles(self):
        """Yield every call that would run code from a file or from another process: pickles, and what hides them."""
        for module in (one for one in self.modules.values() if one.name != PICKLES_ITS_OWN):
            for node in ast.walk(module.tree):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    names = [getattr(node, "module", None), *(alias.name for alias in node.names)]
                    hidden = PICKLING & {str(name).split(".")[0] for name in names}
                    if hidden:
                        yield f"{module.name}:{node.lineno} imports {hidden}"
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    called = ast.unparse(node.func)
                    safe = {f"{word.arg}={ast.unparse(word.value)}" for word in node.keywords}
                    unsafe = called in SAFE_WITH and SAFE_WITH[called] not in safe
                    if unsafe or node.func.attr in OBJECTS_SENT:
                        yield f"{module.name}:{node.lineno} calls {called}"

    def named_twice(self):
        """Yield every file name and class name that stands twice: one name leads to one place."""
        places = {}
        for module in self.modules.values():
            if module.path.name not in ("__init__.py", "__main__.py", *NAMED_TWICE):
                places.setdefault(module.path.name, []).append(module.name)
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and node.name not in NAMED_TWICE:
                    places.setdefault(node.name, []).append(module.name)
        yield from (f"{name}: {' and '.join(found)}" for name, found in places.items() if len(found) > 1)

    def heavy(self):
        """Yield every room that holds too large a part of the lines."""
        lines = {}
        for module in self.modules.values():
            lines[module.room] = lines.get(module.room, 0) + module.path.read_text().count("\n")
        total = sum(lines.values())
        for room, count in lines.items():
            if total > FEW_LINES and count > LARGEST_SHARE * total:
                yield f"{room} holds {count} of {total} lines"

    def crowded(self):
        """Yield every folder with more modules than one takes in at a glance."""
        folders = {}
        for module in self.modules.values():
            folders.setdefault(module.path.parent, []).append(module)
        for folder, modules in folders.items():
            if len(modules) > MOST_FILES:
                yield f"{folder.name} holds {len(modules)} modules"


def strongly_connected(graph):
    """Yield the strongly connected parts of a graph of names (Tarjan)."""
    index, low, stack, on_stack, order = {}, {}, [], set(), iter(range(len(graph)))

    def visit(name):
        index[name] = low[name] = next(order)
        stack.append(name)
        on_stack.add(name)
        for other in graph[name]:
            if other not in index:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in on_stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = set()
            while name not in group:
                group.add(stack.pop())
            on_stack.difference_update(group)
            yield group

    for name in graph:
        if name not in index:
            yield from visit(name)


def _defined(tree):
    """Names of attributes and methods that classes of a file define, or set on themselves."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names
