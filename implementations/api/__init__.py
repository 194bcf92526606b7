"""What an adapter is: claims, one call, one result, and the case nearest to a wanted one that the claims allow."""
