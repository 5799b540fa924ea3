"""Agents behind one interface."""
