"""``moldau`` of the next version, as a node that supports one more level of two features.

The program has the arguments of ``python -m moldau``, and the feature levels of the simulated upgrade.
"""

import functools
import sys

from moldau.cli.main import main
from moldau.cli.serving import serve
from moldau.server.node import ServerNode
from moldau.simulation.cluster.stories.upgrade_stories import NEXT_FEATURES

if __name__ == "__main__":
    serve.ServerNode = functools.partial(ServerNode, features=NEXT_FEATURES)  # type: ignore[misc,assignment]
    sys.exit(main())
