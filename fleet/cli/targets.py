"""Which members a command asks."""

from __future__ import annotations

import os

import click
from click.core import ParameterSource

from fleet.admin import client
from fleet.config import Settings
from fleet.config.file import load
from fleet.core.model import ProxyId


def load_settings(config: str, admin: str | None) -> Settings | None:
    """The file; None where an address was named, and no file beside it."""
    source = click.get_current_context().get_parameter_source("config")
    if admin is not None and source is ParameterSource.DEFAULT:
        return None
    return load(config, os.environ)


def target_urls(settings: Settings | None, admin: str | None) -> dict[ProxyId, str]:
    """Whom to ask: every member of the file, or the one address that was named."""
    if admin is not None:
        return {admin: client.normalize_url(admin, client.scheme_of(settings))}
    return {} if settings is None else client.admin_urls(settings)
