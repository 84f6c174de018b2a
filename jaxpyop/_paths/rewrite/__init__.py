"""TODO."""

from jaxpyop._paths.rewrite.convert import ConversionError as ConversionError
from jaxpyop._paths.rewrite.convert import converted as converted
from jaxpyop._paths.rewrite.convert import is_convertible as is_convertible
from jaxpyop._paths.rewrite.convert import is_installed as is_installed
from jaxpyop._paths.rewrite.convert import package_of as package_of
from jaxpyop._paths.rewrite.operators import OPERATORS as OPERATORS
from jaxpyop._paths.rewrite.operators import call as call
from jaxpyop._paths.rewrite.state import Following as Following
from jaxpyop._paths.rewrite.state import following_as as following_as
