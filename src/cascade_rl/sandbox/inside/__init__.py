"""What runs inside a sandbox: standard library only, and nothing of the package outside this folder.

Inside, this folder alone is mounted (as a namespace package of the same name), so that both ends share the framing and the codec.
"""
