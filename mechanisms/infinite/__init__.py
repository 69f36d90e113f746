"""Privacy of users for ever: releases without end for one budget that never comes back."""
