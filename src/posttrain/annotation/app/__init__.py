"""The annotation web app: pages for annotators and for managers."""

from posttrain.annotation.app.main import create_app

__all__ = ["create_app"]
