"""The version of this build: the one place that names it."""

VERSION = "0.1.0"
