"""Reports: self-contained HTML pages of numbers and plots. What they tell is given to them."""

from elman.report.charts import Level as Level
from elman.report.charts import Pairs as Pairs
from elman.report.charts import Scale as Scale
from elman.report.page import RunPage as RunPage
from elman.report.page import write_report as write_report
