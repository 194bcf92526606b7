"""What is found where a target points: a file or a module is loaded, with stand-ins for absent imports."""
