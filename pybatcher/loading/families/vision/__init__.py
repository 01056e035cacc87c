"""Families whose models take images, and that have no other module for their text models."""
