"""Mechanisms that repeat or renew a publication: BD, BA, PBD, PBA, DPBD, DPBA."""
