"""What a SageMaker training container says about its job and its processes. Standard library only."""
