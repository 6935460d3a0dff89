// The two files of digits/ as read-only data of the library; digits/README.md names source and licence.
        .section .rodata
        .balign 16
        .globl  mantissa_digits_images
        .hidden mantissa_digits_images
mantissa_digits_images:
        .incbin MANTISSA_DIGITS_IMAGES
        .globl  mantissa_digits_images_end
        .hidden mantissa_digits_images_end
mantissa_digits_images_end:
        .globl  mantissa_digits_labels
        .hidden mantissa_digits_labels
mantissa_digits_labels:
        .incbin MANTISSA_DIGITS_LABELS
        .globl  mantissa_digits_labels_end
        .hidden mantissa_digits_labels_end
mantissa_digits_labels_end:
        .byte   0
        .section .note.GNU-stack, "", %progbits
