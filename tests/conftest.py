"""What every test shares: Hypothesis judges behaviour, never time."""

from hypothesis import settings

settings.register_profile("moldau", deadline=None, print_blob=True)
settings.load_profile("moldau")
