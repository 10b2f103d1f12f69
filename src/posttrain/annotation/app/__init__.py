"""The web pages on which people judge, and on which managers see how far they are."""

from posttrain.annotation.app.main import create_app

__all__ = ["create_app"]
