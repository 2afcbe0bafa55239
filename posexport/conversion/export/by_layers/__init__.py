"""A model of many equal layers is traced by a few of them."""
