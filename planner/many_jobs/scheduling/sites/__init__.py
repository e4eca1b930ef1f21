"""Jobs over several sites: what their plans take there, and what policies that place over sites share."""
