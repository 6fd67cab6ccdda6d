"""Modules as portable C99: a layer's step -> a project's files -> a folder."""
