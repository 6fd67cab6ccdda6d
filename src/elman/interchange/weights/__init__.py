"""Weights of RNN, GRU and LSTM as other libraries lay them out: arrays -> containers -> layouts."""
