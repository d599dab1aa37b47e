"""What this project is built, run and tested with: versions with hashes, licences, a bill of materials, an audit.

``run.txt`` holds what the product needs with all its extras, ``dev.txt`` that and what its tests need, ``build.txt``
what builds and installs both, ``web.txt`` the Node.js that builds the dashboard. 'make lock' writes them.
"""
