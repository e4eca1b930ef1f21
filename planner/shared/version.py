"""The version: what `cellplan --version` prints, a plan records and the distribution is called by."""

VERSION = "0.2.0"
