"""Complete example runs that the package ships."""
