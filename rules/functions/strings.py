"""strings"""
