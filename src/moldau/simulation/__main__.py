import sys

from moldau.simulation.runner import main

sys.exit(main())
