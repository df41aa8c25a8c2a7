"""How Sphinx builds these pages: offline, with every warning an error (`nox -s docs`)."""

from importlib import import_module
from importlib.metadata import version as version_of

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

project = "Runledger"
author = "Runledger contributors"
copyright = "2026, Runledger contributors"
release = version_of("runledger-core")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Runledger for Python"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings write code in single backticks, as Markdown does.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_member_order = "groupwise"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

nitpicky = True
nitpick_ignore_regex = [
    # Names of others: their pages are elsewhere, and this build reads nothing from the network.
    (r"py:.*", r"(?!runledger_).*"),
    # Private bases and type variables show in signatures and have no place of their own.
    (r"py:.*", r"runledger_.*\.(_\w+|_\w+\.Catalog[A-Z]\w+|\w*[a-z]T)"),
]


def resolve_alias(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Link a name to the place where the same object is documented under its public name.

    An object lives in a private module, or in a submodule, and is documented by the package that
    exports it; annotations name the former.
    """
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("runledger_"):
        return None
    wanted = find_object(target)
    suffix = "." + target.rpartition(".")[2]
    for name, entry in sorted(env.domains.python_domain.objects.items()):
        if name.endswith(suffix) and wanted is not None and find_object(name) is wanted:
            docname = node.get("refdoc", "")
            uri = app.builder.get_relative_uri(docname, entry.docname) + "#" + entry.node_id
            return nodes.reference("", "", content, internal=True, refuri=uri)
    return None


def find_object(name: str) -> object | None:
    """Return the object of a dotted name, or None."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute, None)
    except ImportError:
        return None


def setup(app: Sphinx) -> None:
    """Register the resolver."""
    app.connect("missing-reference", resolve_alias)
