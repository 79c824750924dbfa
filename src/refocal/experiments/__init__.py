"""The paper's experiments: data sets, models, runs that can be killed and resumed, tables and figures."""
