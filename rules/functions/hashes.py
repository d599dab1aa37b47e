"""hashes"""
