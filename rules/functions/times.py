"""times"""
