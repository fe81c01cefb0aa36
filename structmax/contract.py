"""contract"""
def returns(*kinds):
    def mark(f):
        f.returns = kinds
        return f
    return mark
