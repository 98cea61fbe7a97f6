"""How good are networks that enlarge pictures? PSNR and SSIM on 14 pictures that papers use, against bicubic.

Networks of three kinds, SRCNN, ESPCN and the workbook's own of at most 12,000 parameters, are trained for factors of
2, 3 and 4, on 91 small pictures as the papers' were, or on the photographs that come along. Neither the 91 pictures nor
the 14 come along: put them into folders `t91` and `set14` of the folder that MLPKIT_DATA names.
"""

from .measure import Plan as Plan
from .measure import measure as measure
from .read import mean as mean
from .read import published as published
from .read import table as table
from .train import Choice as Choice
