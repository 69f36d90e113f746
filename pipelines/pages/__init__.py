"""The page kit: one skeleton, one style, one palette and one way to draw charts for every page."""
