"""Rollouts of untrained behaviour and of trained policies."""
