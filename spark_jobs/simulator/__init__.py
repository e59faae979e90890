"""The commit protocol of detection in one process and in virtual time: real code, replaced edges, every interleaving wanted."""
