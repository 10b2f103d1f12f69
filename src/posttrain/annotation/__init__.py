"""Human feedback: questions, answers, inter-annotator agreement and consensus."""
