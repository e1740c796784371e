"""A hook of MkDocs. It puts Mermaid into the documentation's site, so that a browser draws the diagrams
without the network.

``tools/fetch_clients.py`` fetches Mermaid. If it is missing, the theme loads Mermaid from unpkg.com in the
reader's browser.
"""

import logging
import pathlib

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

MERMAID = pathlib.Path(__file__).resolve().parent.parent / ".tools" / "mermaid"
SCRIPT = "mermaid.min.js"
IN_SITE = "assets/mermaid"


def on_config(config: MkDocsConfig) -> None:
    if (MERMAID / SCRIPT).exists():
        config.extra_javascript.append(f"{IN_SITE}/{SCRIPT}")
    else:
        logging.getLogger("mkdocs.hooks").info(
            "The site has no Mermaid, and loads it from the network: python tools/fetch_clients.py fetches it"
        )


def on_files(files: Files, config: MkDocsConfig) -> None:
    if (MERMAID / SCRIPT).exists():
        for name in (SCRIPT, "LICENSE"):
            files.append(File.generated(config, f"{IN_SITE}/{name}", abs_src_path=str(MERMAID / name)))
