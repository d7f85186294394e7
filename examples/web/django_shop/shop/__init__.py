"""An application of Django whose orders are shipped by OnyxQ."""
