"""What all other rooms use: files, strict JSON, the command line, interrupts, memory."""
