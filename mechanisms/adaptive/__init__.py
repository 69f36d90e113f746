"""The adaptive mechanism, the default: weighted releases now and then, a filter in between."""
